import sys

from counting import PAYLOAD, SOCKET, TASKS, count, send, stamp


def noop(payload):
    count()


def stamped(sent):
    stamp(sent)


if __name__ == "__main__":
    import peer_rq
    from redis import Redis
    from rq import Queue

    queue = Queue(connection=Redis(unix_socket_path=SOCKET))
    if "stamp" in sys.argv:
        send(None, lambda sent: queue.enqueue(peer_rq.stamped, sent, result_ttl=0))
        sys.exit()
    queue.enqueue_many([Queue.prepare_data(peer_rq.noop, (PAYLOAD,), result_ttl=0) for _ in range(TASKS)])
