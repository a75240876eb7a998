import asyncio

from counting import URL, asend, count, stamp
from streaq import Worker

worker = Worker(redis_url=URL, concurrency=100, queue_name="peer")


@worker.task(ttl=0)
async def noop(payload):
    count(payload)


@worker.task(ttl=0)
async def stamped(sent):
    stamp(sent)


async def main():
    async with worker:
        await asend(noop.enqueue, stamped.enqueue)


if __name__ == "__main__":
    import peer_streaq

    asyncio.run(peer_streaq.main())
