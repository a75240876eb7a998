from counting import PAYLOAD, SOCKET, TASKS, count
from huey import RedisHuey
from redis import ConnectionPool, UnixDomainSocketConnection

pool = ConnectionPool(connection_class=UnixDomainSocketConnection, path=SOCKET)
huey = RedisHuey("peer", connection_pool=pool, results=False)


@huey.task()
def noop(payload):
    count()


if __name__ == "__main__":
    import peer_huey

    for _ in range(TASKS):
        peer_huey.noop(PAYLOAD)
