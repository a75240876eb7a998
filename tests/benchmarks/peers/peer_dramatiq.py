import dramatiq
from counting import PAYLOAD, SOCKET, TASKS, count
from dramatiq.brokers.redis import RedisBroker
from redis import Redis

broker = RedisBroker(client=Redis(unix_socket_path=SOCKET))
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop")
def noop(payload):
    count()


if __name__ == "__main__":
    for _ in range(TASKS):
        noop.send(PAYLOAD)
