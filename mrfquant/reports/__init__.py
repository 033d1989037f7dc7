"""Compare runs.

`runs` reads their folders, `groups` puts seeds together and finds the settings that differ, `curves` follows the
metrics; `tables`, `figures` and `page` show the groups as text, PNG files and one HTML file.
"""
