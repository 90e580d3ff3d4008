// SPDX-License-Identifier: Apache-2.0
// Nothing: its precompiled headers are what tests reuse.
