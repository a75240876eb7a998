"""The admin's pages; each page has its own module.

The module `base` contains the common parts of all pages: permissions, the choice of a queue, confirmations and forms.
"""
