# Installs the files next to the program that authors of plans and of transports need.
include(CMakePackageConfigHelpers)

install(DIRECTORY lua/ DESTINATION share/prun/lua)
install(DIRECTORY plans/ DESTINATION share/prun/plans)
install(PROGRAMS tools/tokenize tools/tensorboard/prun_tensorboard.py DESTINATION libexec/prun)  # python -m prun.tokenize

install(DIRECTORY runtime/include/prun DESTINATION include FILES_MATCHING PATTERN "*.h")
install(TARGETS prun_transport prun_sdk EXPORT prun ARCHIVE DESTINATION lib)
install(EXPORT prun FILE prunTargets.cmake NAMESPACE prun:: DESTINATION lib/cmake/prun)
# Below version 1 only the ABI is compatible between versions; prun checks it when it loads a plugin.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/prunConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES tools/cmake/prunConfig.cmake tools/cmake/plugin.cmake tools/cmake/device_plugin.cmake ${CMAKE_BINARY_DIR}/prunConfigVersion.cmake
  DESTINATION lib/cmake/prun)
configure_file(tools/cmake/prun.pc.in ${CMAKE_BINARY_DIR}/prun.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/prun.pc DESTINATION lib/pkgconfig)
