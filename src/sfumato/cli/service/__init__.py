# SPDX-License-Identifier: Apache-2.0
"""Commands of the service: those that start a server and look after it, and those of devices that use one."""
