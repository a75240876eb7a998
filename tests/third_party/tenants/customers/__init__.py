"""The shared app: who the tenants are."""
