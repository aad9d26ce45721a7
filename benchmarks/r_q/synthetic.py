"""r_Q beside the MIS baseline on six Gaussian mixtures: rank correlations, stability of the rankings, and their order.

python benchmarks/r_q/synthetic.py [--page docs/r_q_study.md] [--processes 2] [--small]
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context

from page import parser, publish
from problems import FRESH, PROBLEMS
from synthetic_study import study
from synthetic_tables import section


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--processes", type=int, default=1)
    options.add_argument("--attacked", type=int, default=1000, help="training runs that are attacked")
    options.add_argument("--read", type=int, default=100, help="training runs whose r_Q is computed")
    arguments = options.parse_args()
    attacked, read_runs = arguments.attacked, arguments.read
    if arguments.small:
        attacked, read_runs = attacked // 10, read_runs // 10
    began = time.monotonic()
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        problems = (*PROBLEMS, *FRESH)
        found = list(pool.map(study, problems, repeat(attacked), repeat(read_runs)))
    minutes = (time.monotonic() - began) / 60
    publish(arguments.page, "synthetic", section(found, minutes))


if __name__ == "__main__":
    main()
