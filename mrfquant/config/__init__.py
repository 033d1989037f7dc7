"""Configuration: gin files, the settings of parts, plug-ins, search spaces."""
