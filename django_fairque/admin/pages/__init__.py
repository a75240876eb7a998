"""The admin's pages, one module for each.

`base` has what all pages share: permissions, the choice of a queue, confirmations and forms.
"""
