"""The client of the model: one request, and an exception for each kind of answer that is no success.

A real project uses the client of its provider, or httpx. Nothing more than the standard library is used here.
"""

from __future__ import annotations

import asyncio
import json

from django.conf import settings


class ModelBusyError(Exception):
    """The model takes no more requests for now."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the model is busy for {retry_after:g} s")
        self.retry_after = retry_after
        """In seconds."""


class ModelFailedError(Exception):
    """The model failed; the same request may succeed later."""


class QuestionRefusedError(Exception):
    """The model refuses this question, and will do so each time."""


async def complete(question: str) -> str:
    """Send a question to the model. Returns its answer; raises one of the errors above, or `OSError`."""
    body = json.dumps({"question": question}).encode()
    head = f"POST / HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", settings.MODEL_PORT)
    try:
        writer.write(head + body)
        response = await reader.read()
    finally:
        writer.close()
    return answer(response.decode())


def answer(response: str) -> str:
    """Read the model's answer from a response."""
    head, _, text = response.partition("\r\n\r\n")
    status_line, *lines = head.split("\r\n")
    status = int(status_line.split()[1])
    if status == 429:
        headers = dict(line.lower().split(": ", 1) for line in lines)
        raise ModelBusyError(float(headers.get("retry-after", "1")))
    if status >= 500:
        raise ModelFailedError(f"the model answered {status}")
    if status >= 400:
        raise QuestionRefusedError(text)
    return text
