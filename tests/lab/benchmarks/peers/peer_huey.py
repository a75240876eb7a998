from counting import URL, count, send, stamp
from huey import RedisHuey

huey = RedisHuey("peer", url=URL, results=False)


@huey.task()
def noop(payload):
    count(payload)


@huey.task()
def stamped(sent):
    stamp(sent)


if __name__ == "__main__":
    import peer_huey

    send(peer_huey.noop, peer_huey.stamped)
