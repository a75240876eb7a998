"""How the documentation is built: `python -m sphinx -W --keep-going docs OUT`, without a network."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import django
from django.conf import settings

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

# The reference reads commands and models, for which Django must be set up. No server is asked anything.
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_fairque"],
    SECRET_KEY="pages-have-no-secrets",
)
django.setup()

project = "django_fairque"
author = "the django_fairque authors"
project_copyright = f"2026, {author}"
release = metadata.version("django-fairque")
version = ".".join(release.split(".")[:2])

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "fairque_docs"]
exclude_patterns = ["_ext", "_build", "_static"]

# Headings as code hosts name them, so that a link to one is right there and here.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# A name in `single backticks` of a docstring is a link where it is documented, and code elsewhere.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 100

smartquotes_action = "D"  # dashes; a value in quotation marks is typed as it stands

html_theme = "furo"
html_title = f"django_fairque {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static", "images/overview.png"]  # the picture of a shared link has an address that stays
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

# A build for publication names where the site and the repository are (.ci/hatch_build.py): addresses and links to edit a page.
html_baseurl = os.environ.get("FAIRQUE_DOCUMENTATION_URL", "")
if repository := os.environ.get("FAIRQUE_REPOSITORY_URL", "").rstrip("/"):
    html_theme_options = {
        "source_edit_link": f"{repository}/edit/main/docs/{{filename}}",
        "source_view_link": f"{repository}/blob/main/docs/{{filename}}?plain=1",
    }
