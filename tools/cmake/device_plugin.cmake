# prun_device_plugin(name SOURCES a.cc b.cu ... [LINKS lib ...]): adds the target prun_device_NAME, a device that prun loads
# at run time for `--device NAME`. It compiles against the public headers only and exports only prun_device_v1. The
# library is in lib/prun/devices of the build folder, and of the prefix once installed.
function(prun_device_plugin name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  if(NOT ARG_SOURCES OR ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "prun_device_plugin(${name} SOURCES a.cc ... [LINKS ...]): SOURCES missing, or words that mean "
      "nothing: '${ARG_UNPARSED_ARGUMENTS}'")
  endif()
  add_library(prun_device_${name} MODULE ${ARG_SOURCES})
  target_link_libraries(prun_device_${name} PRIVATE prun::transport ${ARG_LINKS})
  set_target_properties(prun_device_${name} PROPERTIES PREFIX "" OUTPUT_NAME ${name} SUFFIX .so
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/prun/devices
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  if(TARGET devices)  # prun's own build: the optional target `devices` builds all of them
    add_dependencies(devices prun_device_${name})
    prun_device_missing(${name} "it was left out when prun was built (target 'devices'; tools/run builds it where --device asks for it)")
    install(TARGETS prun_device_${name} LIBRARY DESTINATION lib/prun/devices OPTIONAL)
  else()
    install(TARGETS prun_device_${name} LIBRARY DESTINATION lib/prun/devices)
  endif()
endfunction()

# prun_device_missing(name "why"): writes the reason to NAME.missing; prun prints it if the device's library is missing.
function(prun_device_missing name why)
  set(_file ${CMAKE_BINARY_DIR}/lib/prun/devices/${name}.missing)
  file(CONFIGURE OUTPUT ${_file} CONTENT "${why}\n" @ONLY)
  install(FILES ${_file} DESTINATION lib/prun/devices)
endfunction()
