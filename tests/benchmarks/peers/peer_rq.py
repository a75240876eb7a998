from counting import PAYLOAD, SOCKET, TASKS, count


def noop(payload):
    count()


if __name__ == "__main__":
    import peer_rq
    from redis import Redis
    from rq import Queue

    queue = Queue(connection=Redis(unix_socket_path=SOCKET))
    queue.enqueue_many([Queue.prepare_data(peer_rq.noop, (PAYLOAD,), result_ttl=0) for _ in range(TASKS)])
