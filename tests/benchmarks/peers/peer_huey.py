from counting import SOCKET, count, send, stamp
from huey import RedisHuey
from redis import ConnectionPool, UnixDomainSocketConnection

pool = ConnectionPool(connection_class=UnixDomainSocketConnection, path=SOCKET)
huey = RedisHuey("peer", connection_pool=pool, results=False)


@huey.task()
def noop(payload):
    count(payload)


@huey.task()
def stamped(sent):
    stamp(sent)


if __name__ == "__main__":
    import peer_huey

    send(peer_huey.noop, peer_huey.stamped)
