import asyncio
import os

from ardiq import Ardiq
from counting import SLOTS, URL, acount, asend, stamp

app = Ardiq(redis_url=URL, queue_name="peer", concurrency=SLOTS, prefetch=2 * SLOTS, result_ttl_ms=0)


@app.task(name="noop")
async def noop(payload):
    await acount(payload)


@app.task(name="stamped")
async def stamped(sent):
    stamp(sent)


async def push_all(payloads):
    await app.enqueue_many([noop.prepare(payload) for payload in payloads])


if __name__ == "__main__":
    import peer_ardiq

    asyncio.run(asend(peer_ardiq.noop.enqueue, peer_ardiq.stamped.enqueue, peer_ardiq.push_all))
    os._exit(0)  # at the end of the interpreter its native threads crash in one of six runs
