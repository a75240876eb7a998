"""An app of models that other packages save: trees of django-mptt, and rows that django-import-export imports."""
