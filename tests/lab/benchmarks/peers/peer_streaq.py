import asyncio

from counting import SLOTS, URL, acount, asend, stamp
from streaq import Worker

worker = Worker(redis_url=URL, concurrency=SLOTS, queue_name="peer")


@worker.task(ttl=0)
async def noop(payload):
    await acount(payload)


@worker.task(ttl=0)
async def stamped(sent):
    stamp(sent)


async def main():
    async with worker:
        await asend(noop.enqueue, stamped.enqueue)


if __name__ == "__main__":
    import peer_streaq

    asyncio.run(peer_streaq.main())
