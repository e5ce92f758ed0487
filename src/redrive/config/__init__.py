"""The file redrive.toml: the queues, command workers and external queues of a project, and the URL of its store."""

from redrive.config.config import Config as Config
from redrive.config.config import StoreOptions as StoreOptions
from redrive.config.discovery import find_file as find_file
from redrive.config.loader import load as load
from redrive.config.loader import load_store as load_store
