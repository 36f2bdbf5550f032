# Debian packages: cmake --preset package && cmake --build --preset package && (cd build/package && cpack -G DEB).
#   mlad        daemon, units, account, configuration      mlad-tools  mlactl
#   libmla0     the libraries                              libmla-dev  headers and archives
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "mlad maintainers <maintainers@mlad.example>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL daemon tools library development)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
# Our own libraries, which no installed package has yet.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PROJECT_BINARY_DIR}/client;${PROJECT_BINARY_DIR}/kernels/host")

set(text "mlad runs attention decode over paged FP8 MLA KV caches for worker\nprocesses on one GPU or on the processor.\n.\n")
set(names daemon mlad tools mlad-tools library libmla0 development libmla-dev)
set(sections daemon admin tools admin library libs development libdevel)
set(CPACK_COMPONENT_DAEMON_DESCRIPTION "${text}This package has the daemon, its systemd units and manual pages.")
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "${text}This package has mlactl, which looks at a running daemon and administers\nit.")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "${text}This package has the libraries that workers link.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "${text}This package has headers, archives and examples.")

set(debian "${CMAKE_CURRENT_BINARY_DIR}/debian")
configure_file(debian/copyright "${debian}/copyright" COPYONLY)
string(TIMESTAMP mlad_date "%a, %d %b %Y 00:00:00 +0000" UTC)
configure_file(debian/changelog.in "${debian}/changelog" @ONLY)
find_program(GZIP gzip REQUIRED)
execute_process(COMMAND "${GZIP}" -9nc "${debian}/changelog" OUTPUT_FILE "${debian}/changelog.gz" COMMAND_ERROR_IS_FATAL ANY)
foreach(component daemon tools library development)
  list(FIND names ${component} at)
  math(EXPR at "${at} + 1")
  list(GET names ${at} package)
  list(GET sections ${at} section)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  install(FILES "${debian}/copyright" "${debian}/changelog.gz" DESTINATION "share/doc/${package}" COMPONENT ${component})
endforeach()
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libmla0 (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_DAEMON_PACKAGE_DEPENDS "systemd (>= 252), mlad-tools (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_DAEMON_PACKAGE_SUGGESTS "nvidia-modprobe")
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA
  "${CMAKE_CURRENT_SOURCE_DIR}/debian/postinst;${CMAKE_CURRENT_SOURCE_DIR}/debian/prerm;${CMAKE_CURRENT_SOURCE_DIR}/debian/postrm;${CMAKE_CURRENT_SOURCE_DIR}/debian/conffiles")
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA "${CMAKE_CURRENT_SOURCE_DIR}/debian/triggers")

# Kernel files are programs of the GPU, which lintian takes for ones of another machine.
install(FILES debian/lintian-overrides DESTINATION share/lintian/overrides RENAME mlad COMPONENT daemon)

# /etc is outside the prefix.
set(CPACK_SET_DESTDIR ON)
install(FILES mlad.conf DESTINATION /etc/mlad COMPONENT daemon)
include(CPack)
