"""Packages that projects use together with this one. Without the group `third-party` these tests are skipped."""
