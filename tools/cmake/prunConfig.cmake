# find_package(prun): what a transport or a device outside prun's own build needs.
#
#     find_package(prun REQUIRED)
#     prun_plugin(mine SOURCES mine.cc)      # lib/prun/plugins/mine.so and mine.plugin
#
# prun_device_plugin(mine SOURCES mine.cc) makes a device, lib/prun/devices/mine.so.
# prun::transport are the headers prun/transport.h, device.h, prun/sdk/*.h and the others, for projects with targets of
# their own; prun::sdk is the library behind prun/sdk/reduce.h and handshake.h.
include(${CMAKE_CURRENT_LIST_DIR}/prunTargets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/plugin.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/device_plugin.cmake)
