"""What happens in the library has documents analysed: after the commit, once in a transaction."""

from __future__ import annotations

from django_fairque.events import changed, on_save

from .tasks import analyse_document

on_save("library.Document", when=changed("sha"), user="owner").enqueue(analyse_document, "owner", "pk")
