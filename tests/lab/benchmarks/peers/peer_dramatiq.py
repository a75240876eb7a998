import dramatiq
from counting import URL, count, send, stamp
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop")
def noop(payload):
    count(payload)


@dramatiq.actor(actor_name="stamped")
def stamped(sent):
    stamp(sent)


if __name__ == "__main__":
    send(noop.send, stamped.send)
