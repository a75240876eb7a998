"""The tasks of all peers that are backends of ``django.tasks``; ``peer_django_settings`` names the backend."""

import django
from counting import acount, count, send, stamp
from django.conf import settings
from django.tasks import task

if __name__ == "__main__":
    django.setup()  # some backends import their models when a task is declared

if settings.PEER == "django-vtasks":  # django-vtasks runs coroutines faster than functions

    @task
    async def noop(payload):
        await acount(payload)

    @task
    async def stamped(sent):
        stamp(sent)

else:

    @task
    def noop(payload):
        count(payload)

    @task
    def stamped(sent):
        stamp(sent)


if __name__ == "__main__":
    import peer_django

    send(
        peer_django.noop.enqueue,
        peer_django.stamped.enqueue,
        lambda payload: peer_django.noop.using(priority=100).enqueue(payload),
    )
