import asyncio

from ardiq import Ardiq
from counting import URL, asend, count, stamp

app = Ardiq(redis_url=URL, queue_name="peer", concurrency=100, prefetch=200, result_ttl_ms=0)


@app.task(name="noop")
async def noop(payload):
    count(payload)


@app.task(name="stamped")
async def stamped(sent):
    stamp(sent)


if __name__ == "__main__":
    import peer_ardiq

    asyncio.run(asend(peer_ardiq.noop.enqueue, peer_ardiq.stamped.enqueue))
