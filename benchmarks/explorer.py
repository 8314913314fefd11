"""Time until the explorer's first answer, and the time of later ones.

    python -m benchmarks.explorer --checkpoint=runs/quickstart --text="Friday, March 7, 2031"

Starts `transformer-jax explore` and asks what its page asks: predictions, attention of all heads and logit lens. Prints
the seconds from the start to the first answer, and the lower quartile, in milliseconds, of answers for one text, made
of the words of --text, after the first answer for it. The output of a translation model is remembered, so later answers
do not generate it again. Run it twice: the second time the programs are in the compilation cache. Run nothing else on
the machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

REPEATED = 20


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--checkpoint", required=True, help="work directory of a model that the explorer shows")
    result.add_argument("--text", required=True, help="the first text")
    result.add_argument("--tokens", type=int, default=64, help="tokens that the first stack reads in the later texts")
    return result


def main(argv: Sequence[str] | None = None) -> None:
    """Start the explorer, ask it, and print two lines."""
    arguments = parser().parse_args(argv)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformer_jax", "explore", f"--checkpoint={arguments.checkpoint}"]
    start = time.perf_counter()
    server = subprocess.Popen([*command, f"--port={port}"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        if not server.stdout.readline():
            raise SystemExit(server.wait())
        look(port, arguments.text)
        print(f"first answer after {time.perf_counter() - start:.1f} s")
        words, text = arguments.text.split(), ""
        for number in range(10 * arguments.tokens):
            longer = f"{text} {words[number % len(words)]}".strip()
            if len(next(iter(look(port, longer)["tokens"].values()))) > arguments.tokens:
                break
            text = longer
        found, times = look(port, text), []
        for _ in range(REPEATED):
            begun = time.perf_counter()
            look(port, text)
            times.append(time.perf_counter() - begun)
        sizes = " and ".join(f"{len(tokens)} ({stack})" for stack, tokens in found["tokens"].items())
        print(f"later answers, {sizes} tokens: {np.percentile(times, 25) * 1e3:.0f} ms (lower quartile of {REPEATED})")
    finally:
        server.terminate()
        server.wait()


def look(port: int, text: str) -> Any:
    """Return what the page shows of a text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/api/look", json.dumps({"text": text}), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    if response.status != http.client.OK:
        raise SystemExit(answer.decode())
    return json.loads(answer)


if __name__ == "__main__":
    main()
