"""Ids on their way through a form and back.

A browser sends every end of a line as CR LF, and HTML knows no NUL: what an id has of these would come back as another
id, and the action would meet somebody else. So they are written out, as in a URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from django.http import HttpRequest

_WRITTEN_OUT = str.maketrans({char: f"%{ord(char):02X}" for char in "%\r\n\0"})


def in_form(value: str) -> str:
    """As the value of a hidden field or a checkbox."""
    return value.translate(_WRITTEN_OUT)


def posted(request: HttpRequest, name: str) -> str:
    """What `in_form` was given; empty if nothing came."""
    return unquote(request.POST.get(name, ""))


def posted_list(request: HttpRequest, name: str) -> list[str]:
    """Each once, in their order."""
    return list(dict.fromkeys(map(unquote, request.POST.getlist(name))))
