#!/opt/fedveil/bin/python
"""Container health: whether HOST:PORT answers GET /health over TLS, with a certificate that CA vouches for."""

import ssl
import sys
import urllib.request

address, authority = sys.argv[1:3]
context = ssl.create_default_context(cafile=authority)
opener = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
)
with opener.open(f"https://{address}/health", timeout=4.0) as answer:
    sys.exit(0 if answer.status == 200 else 1)
