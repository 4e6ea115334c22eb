# SPDX-License-Identifier: MIT
# Install: header, libraries, pkg-config file, CMake package (attn::attn, attn::static), command and its data, man pages.
include(CMakePackageConfigHelpers)

set(attn_targets attn_static)
if(ATTN_BUILD_SHARED)
  list(APPEND attn_targets attn_shared)
endif()
if(TARGET attn_cli)
  install(TARGETS attn_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY bench/cases examples DESTINATION ${CMAKE_INSTALL_DATADIR}/attn) # found by cli/shared/data.c
endif()
install(TARGETS ${attn_targets} EXPORT attnTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(ATTN_PYTHON) # plain files beside the modules of the wheel (pyproject.toml); python/libattn/_library.py and jax open them
  set(ATTN_PYTHON_LIBRARY "" CACHE FILEPATH
      "libattn.so to put into the wheel, built before, with libattn_jax.so beside it; empty: built now")
  set(python_library $<TARGET_FILE:attn_shared>)
  set(python_jax_library $<TARGET_FILE:attn_jax>)
  if(ATTN_PYTHON_LIBRARY)
    file(REAL_PATH ${ATTN_PYTHON_LIBRARY} python_library)
    cmake_path(REPLACE_FILENAME python_library libattn_jax.so OUTPUT_VARIABLE python_jax_library)
    add_custom_target(attn_python)
  else()
    add_custom_target(attn_python DEPENDS attn_shared attn_jax)
  endif()
  install(PROGRAMS ${python_library} DESTINATION libattn RENAME libattn.so COMPONENT python EXCLUDE_FROM_ALL)
  install(PROGRAMS ${python_jax_library} DESTINATION libattn COMPONENT python EXCLUDE_FROM_ALL)
endif()
file(GLOB attn_headers CONFIGURE_DEPENDS include/*.h)
install(FILES ${attn_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)
install(EXPORT attnTargets NAMESPACE attn:: DESTINATION ${package_dir})
configure_package_config_file(cmake/attnConfig.cmake.in attnConfig.cmake INSTALL_DESTINATION ${package_dir})
# 0.x: a minor version may break; from 1.0 on SameMajorVersion.
write_basic_package_version_file(attnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attnConfig.cmake ${PROJECT_BINARY_DIR}/attnConfigVersion.cmake
        DESTINATION ${package_dir})

# The prefix is found from where the file lies, so that an installed tree can be moved.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
  set(pc_libdir ${CMAKE_INSTALL_LIBDIR})
else()
  file(RELATIVE_PATH up /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
  string(REGEX REPLACE "/$" "" up "${up}")
  set(pc_prefix "\${pcfiledir}/${up}")
  set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
endif()
cmake_path(IS_ABSOLUTE CMAKE_INSTALL_INCLUDEDIR absolute_include)
if(absolute_include)
  set(pc_includedir ${CMAKE_INSTALL_INCLUDEDIR})
else()
  set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(attn.pc.in attn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/attn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Man pages: docs/man/<page>.<section>.scd
find_program(SCDOC scdoc)
file(GLOB man_sources CONFIGURE_DEPENDS docs/man/*.scd)
if(SCDOC AND man_sources AND PROJECT_IS_TOP_LEVEL)
  set(man_pages "")
  foreach(source IN LISTS man_sources)
    cmake_path(GET source STEM LAST_ONLY page) # attn-run.1
    string(REGEX MATCH "[1-8]$" section ${page})
    set(out ${PROJECT_BINARY_DIR}/man/${page})
    add_custom_command(OUTPUT ${out} COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/man
                       COMMAND sh -c "'${SCDOC}' < '${source}' > '${out}'" DEPENDS ${source} VERBATIM)
    list(APPEND man_pages ${out})
    install(FILES ${out} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
  endforeach()
  add_custom_target(attn_man ALL DEPENDS ${man_pages})
endif()
