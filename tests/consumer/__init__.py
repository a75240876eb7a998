"""A project of somebody who has installed the package: copied out of here, it runs and is type-checked on the wheel alone."""
