import dramatiq
from counting import URL, count, send, stamp
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop", priority=10)
def noop(payload):
    count(payload)


# A separate queue, because priorities only order the messages that the worker has already fetched.
@dramatiq.actor(actor_name="urgent", priority=0, queue_name="urgent")
def urgent(payload):
    count(payload)


@dramatiq.actor(actor_name="stamped")
def stamped(sent):
    stamp(sent)


if __name__ == "__main__":
    send(noop.send, stamped.send, urgent.send)
