# find_package(prun): for transports and devices outside prun's own build.
#
#     find_package(prun REQUIRED)
#     prun_plugin(mine SOURCES mine.cc)      # lib/prun/plugins/mine.so and mine.plugin
#
# prun_device_plugin(mine SOURCES mine.cc) builds a device, lib/prun/devices/mine.so.
# For projects with their own targets, prun::transport provides the public headers (prun/transport.h, device.h,
# prun/sdk/*.h and others), and prun::sdk the library that implements prun/sdk/reduce.h and handshake.h.
include(${CMAKE_CURRENT_LIST_DIR}/prunTargets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/plugin.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/device_plugin.cmake)
