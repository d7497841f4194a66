# SPDX-License-Identifier: Apache-2.0
"""Routes of the server, by what they are about. Handlers are thin: they check, call the store, and answer."""
