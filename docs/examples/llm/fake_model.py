"""A server that behaves as a hosted model does: slow, busy now and then, and with failures: ``python fake_model.py PORT``.

It takes six requests at once and answers further ones with 429. Each seventh request fails with 503.
A question with the word "forbidden" is refused.
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import count

MAX_UNDER_WAY = 6
SECONDS_PER_ANSWER = 0.3
FAILS_EACH = 7


class Model:
    """Counts the requests that are under way."""

    def __init__(self) -> None:
        self.under_way = 0
        self.numbers = count(1)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        length = 0
        while line := (await reader.readline()).strip().lower():
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        question = json.loads(await reader.readexactly(length))["question"]
        status, text = await self.answer(question)
        more = "Retry-After: 1\r\n" if status == 429 else ""
        writer.write(f"HTTP/1.0 {status} -\r\n{more}\r\n{text}".encode())
        await writer.drain()
        writer.close()

    async def answer(self, question: str) -> tuple[int, str]:
        """Return a status and a text."""
        if self.under_way >= MAX_UNDER_WAY:
            return 429, "too many requests"
        self.under_way += 1
        try:
            await asyncio.sleep(SECONDS_PER_ANSWER)
        finally:
            self.under_way -= 1
        if "forbidden" in question:
            return 400, "this question is against the rules"
        if next(self.numbers) % FAILS_EACH == 0:
            return 503, "overloaded"
        return 200, f"an answer to {question}"


async def main(port: int) -> None:
    server = await asyncio.start_server(Model().serve, "127.0.0.1", port)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
