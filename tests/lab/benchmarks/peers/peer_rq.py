import sys

from counting import PAYLOADS, URL, count, send, stamp


def noop(payload):
    count(payload)


def stamped(sent):
    stamp(sent)


if __name__ == "__main__":
    import peer_rq
    from redis import Redis
    from rq import Queue

    connection = Redis.from_url(URL)
    queue, urgent = Queue(connection=connection), Queue("urgent", connection=connection)
    if sys.argv[1:]:
        send(
            lambda payload: queue.enqueue(peer_rq.noop, payload, result_ttl=0),
            lambda sent: queue.enqueue(peer_rq.stamped, sent, result_ttl=0),
            lambda payload: urgent.enqueue(peer_rq.noop, payload, result_ttl=0),
        )
        sys.exit()
    queue.enqueue_many([Queue.prepare_data(peer_rq.noop, (payload,), result_ttl=0) for payload in PAYLOADS])
