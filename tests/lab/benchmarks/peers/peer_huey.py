from counting import URGENT, URL, count, send, stamp
from huey import PriorityRedisHuey, RedisHuey

huey = (PriorityRedisHuey if URGENT else RedisHuey)("peer", url=URL, results=False)


@huey.task()
def noop(payload):
    count(payload)


@huey.task(priority=100)
def urgent(payload):
    count(payload)


@huey.task()
def stamped(sent):
    stamp(sent)


if __name__ == "__main__":
    import peer_huey

    send(peer_huey.noop, peer_huey.stamped, peer_huey.urgent)
