"""The fixture of the browser tests."""

from chromium import browser as browser
