"""The URL of a server: which forms are valid, and how to split it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from django_fairque.engine.model.errors import nearest
from django_fairque.engine.model.ids import split_names
from django_fairque.engine.model.options import MAX_SHARDS, show

SCHEMES = ("redis", "rediss", "unix", "embedded")
ACCESS_OPTIONS = split_names(
    "db username password ssl_ca_certs ssl_certfile ssl_keyfile ssl_cert_reqs ssl_check_hostname"
)
"""Options for the database, the credentials and the certificates. `RedisConfig`, the URL, and the options of a cache
use the same names."""
EXAMPLES = "redis://, rediss://, unix:// or embedded://, for example redis://127.0.0.1:6379/0"


def join_urls(given: object) -> object:
    """Join a list of URLs to one text; return a value of another type unchanged."""
    is_list = isinstance(given, (list, tuple)) and all(isinstance(url, str) for url in given)
    return " ".join(given) if is_list and isinstance(given, Iterable) else given


def separate_urls(url: str) -> list[str]:
    """Split a text with several servers, one for each shard, at the spaces or commas between their URLs."""
    return re.split(r"[\s,]+(?=[a-z]+://)", url.strip())


def number_of_servers(url: str) -> int:
    """Return the number of servers in a text with one or several URLs."""
    return sum(map(_embedded_servers, separate_urls(url)))


def place_and_servers(url: str) -> tuple[str, int]:
    """Return two values: an ``embedded://`` URL without its number of servers, and this number."""
    return url.partition("?")[0], _embedded_servers(url)


def _embedded_servers(url: str) -> int:
    found = re.fullmatch(r"embedded:.*\?servers=(\d+)", url)
    return int(found[1]) if found else 1


def split_url(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without credentials, and the options that the URL contains.

    If an option is in the query and elsewhere in the URL, the query takes precedence, as in redis-py. A URL that can't
    be split is returned unchanged; `find_url_problem` explains the problem.
    """
    if find_url_problem(url):
        return url, {}
    if len(urls := separate_urls(url)) > 1:  # all URLs have the same options, as `find_url_problem` has checked
        places = [split_url(one) for one in urls]
        return " ".join(place for place, _ in places), places[0][1]
    parts = urlsplit(url.strip())
    found = {"username": parts.username, "password": parts.password, "db": _database(parts)}
    options = {name: unquote(value) for name, value in found.items() if value}
    options |= {name.lower(): value for name, value in parse_qsl(parts.query, keep_blank_values=True)}
    if parts.scheme == "rediss":
        options["ssl"] = "true"
    public = [(name, value) for name, value in parse_qsl(parts.query) if name not in ("username", "password")]
    # urlunsplit is not used, because it drops the empty host of unix:// and embedded://.
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"{place}?{urlencode(public)}" if public else place, options


def find_url_problem(url: str, known: Collection[str] | None = None) -> str:
    """Return the problem of a URL, or an empty text. ``known`` are the options that the URL's query may contain."""
    if len(urls := separate_urls(url)) > 1:
        return next(filter(None, (find_url_problem(one, known) for one in urls)), "") or _list_problem(urls)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # the error's own text may quote a part of the password
        return f"expected {EXAMPLES}; got {show(url)}, whose host or port can't be read (is the password %-encoded?)"
    if parts.scheme not in SCHEMES:
        return f"expected {EXAMPLES}; got {show(url)}"
    if wrong := _wrong_place(parts, host):
        return f"{wrong}; got {show(url)}"
    for name in (name.lower() for name, _ in parse_qsl(parts.query) if parts.scheme != "embedded"):
        if known is not None and name not in known:
            suggestion = nearest(name, known)
            return f"unknown option {name!r} in the URL" + (f"; did you mean {suggestion}?" if suggestion else "")
    return ""


def _list_problem(urls: list[str]) -> str:
    """Return the problem of several URLs that are valid separately, or an empty text."""
    if len(urls) > MAX_SHARDS:
        return f"expected at most {MAX_SHARDS} servers; got {len(urls)}"
    if len({urlsplit(url).scheme for url in urls}) > 1 or any(
        split_url(url)[1] != split_url(urls[0])[1] for url in urls
    ):
        return "expected URLs with the same scheme, user, password, database and options; got others"
    if len({split_url(url)[0] for url in urls}) < len(urls):
        return "expected each server once, because each has one shard; got one of them twice"
    return ""


def _wrong_place(parts: SplitResult, host: str | None) -> str:
    if parts.scheme == "embedded":
        is_number = re.fullmatch(r"servers=\d{1,3}", parts.query) and 1 <= int(parts.query[8:]) <= MAX_SHARDS
        if parts.netloc or parts.path == "/" or parts.fragment or (parts.query and not is_number):
            return (
                "expected embedded:// or, with three slashes, embedded:///absolute/directory, with nothing behind it or "
                f"?servers=N for N from 1 to {MAX_SHARDS}"
            )
    if parts.scheme == "unix" and (parts.netloc.rpartition("@")[2] or parts.path in ("", "/")):
        return "expected, with three slashes, unix:///absolute/path/of/the.sock"
    if parts.scheme in ("redis", "rediss"):
        if not host:
            return f"expected a host, for example {parts.scheme}://127.0.0.1:6379/0"
        database = _database(parts)
        if database and not database.isdecimal():
            return f"expected a database number after the host, for example {parts.scheme}://{host}/0"
    return ""


def is_loopback(host: str) -> bool:
    """Return whether connections to this host stay on this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _database(parts: SplitResult) -> str:
    return parts.path.strip("/") if parts.scheme in ("redis", "rediss") else ""
