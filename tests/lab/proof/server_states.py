"""Keeping, bringing back and comparing whole states of a server: what a proof does thousands of times a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.head import whole_record

if TYPE_CHECKING:
    from redis import Redis

LIVE = ("scheduled", "deferred", "queued", "started")

_COPY = """
redis.call('SELECT', ARGV[2])
redis.call('FLUSHDB', 'SYNC')
redis.call('SELECT', ARGV[1])
for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', key, key, 'DB', ARGV[2]) end
"""

# The digest has the type and content of each key, without its expiry, and ignores the order of writes. Recorded
# replies, the count of their bytes, the counters' revision and users' versions are left out: they are new for each call.
DIGEST = """
redis.call('SELECT', ARGV[1])
local parts = {}
local function add(text) parts[#parts + 1] = #text .. ':' .. text end
local keys = redis.call('KEYS', '*')
table.sort(keys)
for _, key in ipairs(keys) do
  local left = redis.call('PTTL', key)
  if not string.find(key, ':reply:', 1, true) and (left < 0 or left > tonumber(ARGV[2])) then
    local kind, found = redis.call('TYPE', key).ok, nil
    if kind == 'hash' then
      found = {}
      local flat = redis.call('HGETALL', key)
      for i = 1, #flat, 2 do
        local field = flat[i]
        if not string.find(field, '^replies') and field ~= 'revision' and field ~= 'version' then
          found[#found + 1] = #field .. ':' .. field .. flat[i + 1]
        end
      end
      table.sort(found)
    elseif kind == 'zset' then
      found = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    elseif kind == 'list' then
      found = redis.call('LRANGE', key, 0, -1)
    elseif kind == 'set' then
      found = redis.call('SMEMBERS', key)
      table.sort(found)
    else
      found = { redis.call('GET', key) }
    end
    add(key)
    add(kind)
    for _, text in ipairs(found) do add(text) end
  end
end
return redis.sha1hex(table.concat(parts, ' '))
"""


class States:
    """Databases of one server as places to keep states: 0 is the one that the queue works on."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self._copy = redis.register_script(_COPY)
        self._digest = redis.register_script(DIGEST)

    def keep(self, place: int) -> None:
        """Copy what there is now to ``place``."""
        self._copy(args=[0, place])

    def bring_back(self, place: int) -> None:
        """Make what there is now what it was."""
        self._copy(args=[place, 0])

    def digest(self, place: int = 0, *, lasting: float = 0) -> bytes:
        """One value for all that there is (and will be for ``lasting`` seconds); equal states have equal ones."""
        return bytes(self._digest(args=[place, int(lasting * 1000)]))


def tasks(redis: Any) -> dict[str, dict[bytes, bytes]]:
    """All records of the default queue's tasks, on whatever shard, each with its payload."""
    keys = [redis.keys(f"fq:[{{]default:*[}}]:{kind}:*") for kind in ("task", "payload")]
    names = sorted({key.decode().replace(":payload:", ":task:", 1) for some in keys for key in some})
    with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hgetall(name)
            pipe.get(name.replace(":task:", ":payload:", 1))
        replies: list[Any] = pipe.execute()
    whole = map(whole_record, replies[::2], replies[1::2])
    return {
        name.partition("}:task:")[2]: {**record, b"payload": payload}
        for name, (record, payload) in zip(names, whole, strict=True)
        if record
    }
