//! System functions that differ with and without `std`: environment variables, and connections to hosts by name.

#[cfg(feature = "std")]
pub(crate) use with_std::{connect, variable};
#[cfg(not(feature = "std"))]
pub(crate) use without_std::{connect, variable};

#[cfg(feature = "std")]
mod with_std {
    use std::env;
    use std::io;
    use std::net::TcpStream;
    use std::os::fd::OwnedFd;

    /// Value of a variable, with invalid UTF-8 replaced.
    pub(crate) fn variable(name: &str) -> Option<String> {
        env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }

    /// Connects to `host:port`, and disables delays of requests: they are small, and the next one waits for the reply.
    pub(crate) fn connect(address: &str) -> io::Result<OwnedFd> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(stream.into())
    }
}

/// Functions of the C library, for libraries with callers in C.
#[cfg(any(not(feature = "std"), test))]
#[cfg_attr(test, allow(dead_code, reason = "the environment is that of the other one"))]
mod without_std {
    use alloc::ffi::CString;
    use alloc::string::String;
    use core::ffi::CStr;
    use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
    use core::{iter, ptr};

    use job_memory::SystemError;
    use rustix::fd::OwnedFd;
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, connect as connect_socket, socket_with, sockopt};

    /// Value of a variable, with invalid UTF-8 replaced.
    pub(crate) fn variable(name: &str) -> Option<String> {
        let name = CString::new(name).ok()?;
        #[expect(unsafe_code, reason = "the C library owns the environment")]
        // SAFETY: the name ends with a NUL. The value is valid until the program changes the environment. No C program may do so while
        // another thread reads it.
        let value = unsafe {
            let value = libc::getenv(name.as_ptr());
            if value.is_null() { None } else { Some(CStr::from_ptr(value)) }
        };
        Some(String::from_utf8_lossy(value?.to_bytes()).into_owned())
    }

    /// Connects to `host:port`, and disables delays of requests: they are small, and the next one waits for the reply.
    pub(crate) fn connect(address: &str) -> Result<OwnedFd, SystemError> {
        let (host, port) = address.rsplit_once(':').ok_or(Errno::INVAL)?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().map_err(|_| Errno::INVAL)?;
        let mut failed = Errno::HOSTUNREACH;
        for address in Addresses::of(host)?.iter(port) {
            match connect_to(&address) {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed.into())
    }

    fn connect_to(address: &SocketAddr) -> Result<OwnedFd, Errno> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let stream = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        connect_socket(&stream, address)?;
        sockopt::set_tcp_nodelay(&stream, true)?;
        Ok(stream)
    }

    /// Addresses of a host, in the order in which they must be tried.
    struct Addresses(*mut libc::addrinfo);

    impl Addresses {
        fn of(host: &str) -> Result<Self, Errno> {
            let host = CString::new(host).map_err(|_| Errno::INVAL)?;
            let mut found = ptr::null_mut();
            #[expect(unsafe_code, reason = "names are resolved by the C library")]
            // SAFETY: a structure of zeroes is a valid set of empty hints, and the host's name ends with a NUL.
            let result = unsafe {
                let hints = libc::addrinfo { ai_socktype: libc::SOCK_STREAM, ..core::mem::zeroed() };
                libc::getaddrinfo(host.as_ptr(), ptr::null(), &raw const hints, &raw mut found)
            };
            if result == 0 { Ok(Self(found)) } else { Err(Errno::HOSTUNREACH) }
        }

        fn iter(&self, port: u16) -> impl Iterator<Item = SocketAddr> {
            let mut next = self.0.cast_const();
            let entries = iter::from_fn(move || {
                #[expect(unsafe_code, reason = "the C library returns a list of structures")]
                // SAFETY: each entry points to the next one, or is the last, and is valid as long as `self`.
                let entry = unsafe { next.as_ref() }?;
                next = entry.ai_next;
                Some(entry)
            });
            entries.filter_map(move |entry| address_of(entry, port))
        }
    }

    impl Drop for Addresses {
        fn drop(&mut self) {
            #[expect(unsafe_code, reason = "the C library made the list")]
            // SAFETY: the list is freed only once.
            unsafe {
                libc::freeaddrinfo(self.0);
            }
        }
    }

    /// The address of an entry with a port; `None` for an address of another family.
    fn address_of(entry: &libc::addrinfo, port: u16) -> Option<SocketAddr> {
        match entry.ai_family {
            libc::AF_INET => {
                #[expect(unsafe_code, reason = "the family decides the structure")]
                // SAFETY: the address has this family.
                let address = unsafe { entry.ai_addr.cast::<libc::sockaddr_in>().read() };
                Some((Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)), port).into())
            }
            libc::AF_INET6 => {
                #[expect(unsafe_code, reason = "the family decides the structure")]
                // SAFETY: the address has this family.
                let address = unsafe { entry.ai_addr.cast::<libc::sockaddr_in6>().read() };
                Some((Ipv6Addr::from(address.sin6_addr.s6_addr), port).into())
            }
            _ => None,
        }
    }

    #[cfg(test)]
    mod tests {
        use std::net::TcpListener;

        use super::*;

        #[test]
        fn hosts_are_found_by_name_and_by_address() {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
                assert!(connect(&format!("{host}:{port}")).is_ok(), "{host}");
            }
            for nonsense in ["", "127.0.0.1", "127.0.0.1:", "127.0.0.1:port", "no.such.host.invalid:1"] {
                assert!(connect(nonsense).is_err(), "{nonsense}");
            }
        }

        #[test]
        fn variables_are_those_of_the_process() {
            assert_eq!(variable("PATH"), std::env::var("PATH").ok());
            assert_eq!(variable("LATTICE_NO_SUCH_VARIABLE"), None);
        }
    }
}
