"""Runs tasks in threads and on event loops, within their time limits and isolated from each other. No module in this
package calls the server.
"""
