import asyncio

from counting import URL, acount, asend, stamp
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(URL)


@broker.task(task_name="noop")
async def noop(payload):
    await acount(payload)


@broker.task(task_name="stamped")
async def stamped(sent):
    stamp(sent)


async def main():
    await broker.startup()
    await asend(noop.kiq, stamped.kiq)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
