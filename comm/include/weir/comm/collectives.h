// The operations of a communicator: see weir/comm/communicator.h.
#pragma once

#include "weir/comm/communicator.h"
