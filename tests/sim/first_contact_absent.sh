#!/bin/sh
# SPDX-License-Identifier: MIT
# tools/first_contact.sh without a driver must say so in words and exit with status 77.   usage: first_contact_absent.sh KIT BUILD
words=$(FIRST_CONTACT_DRIVER=/nowhere/libcuda.so.1 "$1" "$2")
status=$?
echo "$words"
[ $status -eq 77 ] || exit 1
case $words in
'no Blackwell device: the driver cannot be opened'*) exit 0 ;;
esac
exit 1
