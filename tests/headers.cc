// SPDX-License-Identifier: Apache-2.0
// Nothing but a source for the headers that tests share compiled: cmake/WeirTest.cmake names them.
