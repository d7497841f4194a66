# SPDX-License-Identifier: Apache-2.0
"""Parts of the matching benchmark: its images, the methods compared, measurements in fresh processes, the drawing."""
